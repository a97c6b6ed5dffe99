"""What a driver for a message broker needs: a backend over deliveries that are acknowledged."""
