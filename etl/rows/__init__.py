"""What happens to rows between source and shard: cleaned, judged, labelled, deduplicated, split."""
