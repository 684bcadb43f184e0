import dataclasses

import pytest
from tiny import TINY


@pytest.mark.parametrize(("buckets", "distance"), [(2, 128), (7, 128), (32, 16)])
def test_position_buckets_that_cannot_be_are_refused(buckets, distance):
    with pytest.raises(ValueError, match=f"even, at least 4 .* got {buckets} and {distance}"):
        dataclasses.replace(
            TINY["v1.1"],
            relative_attention_num_buckets=buckets,
            relative_attention_max_distance=distance,
        )
