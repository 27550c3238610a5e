"""Speed, as ratios within one process. Results are kept in README.md beside the command and the commit."""
