"""What happened: the audit log, the timeline of deaths, daily trends, and the log of defects."""
