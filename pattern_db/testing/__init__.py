"""Stand-ins for disks: ones that fail on demand and ones that lose their power; part of the product, tested too."""
