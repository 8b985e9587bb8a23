"""Send records of a store or an archive to a cluster again."""
