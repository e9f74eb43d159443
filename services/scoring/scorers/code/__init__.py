"""Programs as answers: tests in an OS-level sandbox. What runs within it is in `inside`."""
