"""One module per group of measures: its title, the peers it names, and `rows()`."""
