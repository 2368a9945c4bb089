#include "executor/virtual/lengths.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "casync/planner.hpp"

namespace casync {
namespace {

class Lengths final : public Codec {
 public:
  explicit Lengths(std::shared_ptr<const Codec> of) : of_(std::move(of)), info_(of_->info()) {
    if (!info_.fixed_size) bytes_per_value_ = CostTable::usual_payload(info_.spec);
    info_.feedback = Feedback::none;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& shape, std::int64_t element) const override { return of_->cut(shape, element); }
  std::size_t bound(const Shape& shape, DType dtype, const Range& range, int round) const override {
    return of_->bound(shape, dtype, range, round);
  }
  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      const std::size_t most = segment.payload.size();
      const double usual = static_cast<double>(segment.range.size()) * bytes_per_value_.value_or(0);
      segment.payload_bytes = bytes_per_value_ ? std::min(most, static_cast<std::size_t>(usual)) : most;
    }
  }
  std::int64_t agreed() const override { return of_->agreed(); }
  bool applies(const Shape& shape, std::uint32_t sequence) const override { return of_->applies(shape, sequence); }

 private:
  std::shared_ptr<const Codec> of_;
  CodecInfo info_;
  std::optional<double> bytes_per_value_;
};

}  // namespace

std::shared_ptr<const Codec> make_lengths(std::string_view spec) { return std::make_shared<Lengths>(make_codec(spec)); }

}  // namespace casync
