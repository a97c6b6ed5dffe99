"""Redis: Laravel's lists and sorted sets, with leases, fences and counted starts."""
