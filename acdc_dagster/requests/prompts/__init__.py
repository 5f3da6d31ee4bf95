"""From the rows of a table to request bodies, by way of the job's prompt."""
