#include "codec/cpu/adasum.hpp"

namespace casync::codec {
namespace {

double total(const double* lanes, std::int64_t count) {
  double sum = 0;
  for (std::int64_t lane = 0; lane < count; ++lane) sum += lanes[lane];
  return sum;
}

/// A vector of zeros takes no part, and its partner is as it was; of NaN nothing is zero.
double factor_of(double own, double common) { return own == 0 ? 1 : 1 - common / (2 * own); }

}  // namespace

Adasum& Adasum::start(std::size_t contributions) {
  static thread_local Adasum own;
  own.contributions_ = contributions;
  own.values_.resize(contributions * static_cast<std::size_t>(kLongestBlock));
  own.dots_.assign(contributions, {});
  own.factors_.assign(contributions, {});
  return own;
}

/// The results of all levels below `stride`, of which the factors are known.
void Adasum::fold(std::size_t stride, std::int64_t n) {
  for (std::size_t below = 1; below < stride; below *= 2) {
    for (std::size_t i = 0; i + below < contributions_; i += 2 * below) {
      const Factors factors = factors_[i + below];
      double* const a = values_.data() + i * static_cast<std::size_t>(n);
      const double* const b = a + below * static_cast<std::size_t>(n);
      for (std::int64_t e = 0; e < n; ++e) a[e] = factors.a * a[e] + factors.b * b[e];
    }
  }
}

void Adasum::measure(std::size_t stride, std::int64_t n) {
  for (std::size_t i = 0; i + stride < contributions_; i += 2 * stride) {
    Dots& dots = dots_[i + stride];
    const double* const a = values_.data() + i * static_cast<std::size_t>(n);
    const double* const b = a + stride * static_cast<std::size_t>(n);
    const auto add = [&](std::int64_t e, std::int64_t lane) {
      dots.aa[lane] += a[e] * a[e];
      dots.ab[lane] += a[e] * b[e];
      dots.bb[lane] += b[e] * b[e];
    };
    const std::int64_t rest = n - n % kLanes;
    for (std::int64_t begin = 0; begin < rest; begin += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) add(begin + lane, lane);
    }
    for (std::int64_t e = rest; e < n; ++e) add(e, e - rest);
  }
}

void Adasum::settle(std::size_t stride) {
  for (std::size_t i = 0; i + stride < contributions_; i += 2 * stride) {
    const Dots& dots = dots_[i + stride];
    const double common = total(dots.ab, kLanes);
    factors_[i + stride] = {factor_of(total(dots.aa, kLanes), common), factor_of(total(dots.bb, kLanes), common)};
  }
}

}  // namespace casync::codec
