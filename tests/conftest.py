from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red run is the change's fault; `make test-slow` draws new ones.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("slow", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


def pytest_configure(config):
    if "slow" in config.option.markexpr and "not" not in config.option.markexpr:
        settings.load_profile("slow")
