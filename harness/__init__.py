"""What runners and their data need before any accelerator framework is loaded; no jax in here."""
