"""Where rows come from: files and Hive tables, identified and read."""
