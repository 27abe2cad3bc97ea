"""Defaults of the configuration that depend on the machine."""

from __future__ import annotations

import resource

from pattern_server.sections import SupervisorConfig, descriptors_max, raise_descriptor_limit


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == descriptors_max() > 256
        assert 8 <= SupervisorConfig().max_open <= descriptors_max() // 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
