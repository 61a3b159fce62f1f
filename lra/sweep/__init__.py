"""Many runs of the benchmark: a file of jobs, a local queue, submission to a cluster, status. No jax here."""
