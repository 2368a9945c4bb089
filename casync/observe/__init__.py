"""What happens in a job, for people: logs, metrics, event logs and timelines."""
