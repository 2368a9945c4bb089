"""Reports to people on what happens in a job: logs, metrics, event logs and timelines."""
