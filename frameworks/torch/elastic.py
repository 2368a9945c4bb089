"""Horovod's elastic jobs, which are not there yet: importing this module says so."""

raise ImportError(
    "casync.torch.elastic is part of Horovod's interface and not there yet: a job has a fixed number of ranks. Save "
    "with casync.save_state, and resume on as many ranks as there are"
)
