"""Reading of runs and writing of reports: groups, tables, statistics, figures, pages. No jax."""
