"""batch-pipeline: files in, published BATCH manifests out."""
