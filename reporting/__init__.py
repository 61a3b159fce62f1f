"""Reading runs and writing reports: runs, groups, tables, statistics, pictures, pages. No jax."""
