"""Many runs: arms x seeds, the figures of the paper, the pool of processes, and the progress display."""
