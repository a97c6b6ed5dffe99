"""The site: a copy of docs/, with pages made from the code and from the README, built by Sphinx."""
