import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from melisma.fleet.t_distribution import t_quantile

SHARES = (1e-4, 0.01, 0.3, 0.5, 0.6, 0.9, 0.975, 0.999)
FREEDOM = np.array([1.0, 1.5, 2.0, 3.0, 4.7, 10.0, 33.3, 1e3, 9999.0, 1e4])


@pytest.mark.parametrize("share", SHARES)
def test_quantiles_are_those_of_scipy(share: float) -> None:
    expected = student.ppf(share, FREEDOM)
    np.testing.assert_allclose(t_quantile(share, FREEDOM), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("share", SHARES)
def test_quantiles_are_normal_for_many_degrees_of_freedom(share: float) -> None:
    many = np.array([[5e6, 1e8], [1e300, np.inf]])
    quantiles = t_quantile(share, many)
    assert quantiles.shape == (2, 2)
    np.testing.assert_allclose(quantiles, norm.ppf(share), rtol=1e-5, atol=1e-10)


def test_a_scalar_number_of_degrees_of_freedom_is_accepted() -> None:
    assert float(t_quantile(0.9, np.asarray(3.0))) == pytest.approx(student.ppf(0.9, 3.0))
