"""What the ETL writes: shards, adopted TFRecords, rejected rows."""
