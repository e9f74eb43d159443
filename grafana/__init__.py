"""Dashboards as code, and the rules of Prometheus: `python -m grafana.build` writes the former."""
