"""What a mini cluster may have besides: high availability, TLS."""
