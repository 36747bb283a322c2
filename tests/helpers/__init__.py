"""What tests share: references, networks, data and accidents."""
