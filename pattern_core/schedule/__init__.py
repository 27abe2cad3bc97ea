"""What a constellation does by itself: schedules, heartbeats, and the times of their occurrences."""
