"""Who is there and how they are: model, addresses, discovery, polling, snapshots."""
