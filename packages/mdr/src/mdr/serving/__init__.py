"""The service as one ASGI application: routes mounted, limits, headers, logs, metrics, start and stop."""
