"""Lists of resolvers: the tables that are shipped, and those that a person brings or fetches."""
