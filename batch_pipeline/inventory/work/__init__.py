"""From planned batches over attempts to manifests. How a meta table is read is not known here."""
