"""The Dagster side: a declared job as five chained, partitioned assets."""
