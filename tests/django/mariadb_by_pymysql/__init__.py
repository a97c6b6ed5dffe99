"""Django's backend for MariaDB, over PyMySQL in place of mysqlclient, which has to be built."""
