"""The client for asyncio, from which the other is generated (scripts/generate_sync.py)."""
