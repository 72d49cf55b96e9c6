"""What tests share: waiting, servers, users, models, texts."""
