"""Message formats: generated protobuf (checked in) and the framing of ttrpc. Knows no meaning."""
