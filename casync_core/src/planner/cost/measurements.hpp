#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/planner.hpp"
#include "plan/planning.hpp"
#include "planner/cost/codec_times.hpp"
#include "planner/cost/links.hpp"
#include "planner/cost/payload_sizes.hpp"
#include "planner/cost/ready_times.hpp"

namespace casync {

/// The processors that a rank may use, and who else does.
struct Processors {
  std::uint64_t machine = 0;  ///< which they are of; 0: no other rank uses them
  std::uint32_t usable = 2;
  std::uint32_t ranks = 1;  ///< that share them

  double of_one_rank() const { return static_cast<double>(usable) / ranks; }
  friend bool operator==(const Processors&, const Processors&) = default;
};

/// The part of a CostTable that was measured on one rank.
struct MeasuredCosts {
  MeasuredLink inter;
  MeasuredLink intra;
  std::optional<double> copy;  ///< seconds per byte
  std::map<std::string, CodecCost, std::less<>> codecs;
  std::map<std::string, CodecCost, std::less<>> device_codecs;
  std::map<std::string, MeasuredGradient, std::less<>> gradients;
  Processors processors;
  std::optional<double> operation{};  ///< seconds of a processor
  friend bool operator==(const MeasuredCosts& a, const MeasuredCosts& b);
};

/// They are one control message. So of the gradients it tells the largest ones, in kMostBytesOfGradients at most.
void put(std::vector<std::byte>& out, const MeasuredCosts& costs);
inline constexpr std::size_t kMostBytesOfGradients = 16 << 10;
/// Throws CorruptPayload for bytes that `put` did not write.
MeasuredCosts get_measured_costs(std::span<const std::byte> bytes);

/// The costs of a job from those of its ranks: links as links.hpp says, and of copies the slowest rank's; of each codec
/// the median; of gradients, the mean of their payloads, because each rank's are sent, and when the last rank has them.
/// A codec that some rank has not measured on its device goes through the host there, and counts as one that does.
/// Processors are those of the machine on which a rank has least.
MeasuredCosts reduce(std::span<const MeasuredCosts> ranks);
/// `prior`, but for what was measured.
CostTable measured_over(const MeasuredCosts& measured, const CostTable& prior);

/// The measurements of one rank.
class Measurements {
 public:
  void add(const Measurement& measurement);
  void add(const EncodedSize& size) { payloads_.add(size); }
  void add(const ReadyGradient& gradient) { readiness_.add(gradient); }
  /// Gradient `tensor` is not used any more.
  void forget(const std::string& tensor) {
    payloads_.forget(tensor);
    readiness_.forget(tensor);
  }
  /// Whether both encode and decode of a codec were timed.
  bool has(std::string_view codec) const { return codecs_.has(codec); }
  bool has_payload(std::string_view tensor, std::string_view codec) const { return payloads_.has(tensor, codec); }
  /// Copies have the rate of a link.
  MeasuredCosts costs() const;

 private:
  static constexpr std::size_t kSteps = 8;
  std::optional<double> operation(double message_s) const;

  LinkSamples inter_;
  LinkSamples intra_;
  Recent<Sample, LinkSamples::kMost> copies_;
  CodecTimes codecs_;
  Recent<Sample, kSteps> operations_;
  CodecTimes device_codecs_;
  PayloadSizes payloads_;
  ReadyTimes readiness_;
};

}  // namespace casync
