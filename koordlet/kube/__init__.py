"""The only speaker to the API server and the kubelet: list, watch, patch, evict. Decides nothing."""
