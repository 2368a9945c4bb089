"""How the ranks of a job are connected: by MPI, or by sockets of our own."""
