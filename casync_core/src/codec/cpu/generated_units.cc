#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/decayed.hpp"
#include "codec/cpu/generated.hpp"
#include "codec/cpu/unit_scratch.hpp"

/// Units of any program, encoded and decoded one by one: payloads may vary in size, and a unit may be long.
namespace casync::codec {
namespace {

class Units final : public Generated<Codec> {
 public:
  using Generated::Generated;

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    const std::int64_t unit = unit_of(shape);
    return element >= shape.numel() ? shape.numel() : element / unit * unit;
  }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const std::int64_t unit = unit_of(shape);
    const std::int64_t rest = range.size() % unit;
    const std::int64_t whole = range.size() / unit;
    return static_cast<std::size_t>((whole > 0 ? whole * bound_of(shape, unit) : 0) +
                                    (rest > 0 ? bound_of(shape, rest) : 0));
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      CASYNC_CHECK(segment.op == ReduceOp::sum && is_floating(segment.dtype), info_.spec, " cannot do ",
                   name_of(segment.op), " of ", name_of(segment.dtype));
      CASYNC_CHECK(!segment.sources.empty() || segment.range.size() == 0, info_.spec, ": no sources");
      run_units(segment);
    }
  }

 private:
  /// One unit of a segment.
  struct Unit {
    Segment& segment;
    Facts facts;
    std::int64_t offset;  ///< of its first element in the segment's range
    UnitScratch& scratch;
    std::byte* arrays;
    std::array<float*, 8> state{};

    float* residual() const { return segment.residual == nullptr ? nullptr : segment.residual + offset; }
    std::int64_t raw_bytes() const { return offset * static_cast<std::int64_t>(size_of(segment.dtype)); }
  };

  std::vector<std::int64_t> begins(const Shape& shape, const Range& range) const override {
    std::vector<std::int64_t> begins;
    for (std::int64_t at = range.begin; at < range.end; at += unit_of(shape)) begins.push_back(at);
    begins.push_back(range.end);
    return begins;
  }
  std::int64_t slot_bytes(const Shape& shape, std::int64_t elements, int /*round*/) const override {
    return bound_of(shape, elements);
  }

  std::int64_t unit_of(const Shape& shape) const {
    const std::int64_t whole = std::max<std::int64_t>(shape.numel(), 1);
    return instance_.codec.whole ? whole : instance_.kernels().unit(instance_.facts(shape));
  }

  std::int64_t bound_of(const Shape& shape, std::int64_t elements) const {
    Facts facts = instance_.facts(shape);
    facts.n = elements;
    const std::int64_t bytes = instance_.kernels().bound(facts, 0);
    if (bytes < 0) {
      throw InvalidArgument(detail::concat(info_.spec, ": `bound` is ", bytes, " bytes for a unit of ", elements,
                                           " elements (an int32 holds no more than 2147483647): correct it in the "
                                           "file, or take smaller units"));
    }
    return bytes;
  }

  void run_units(Segment& segment) const {
    UnitScratch& scratch = UnitScratch::of_thread();
    segment.payload_bytes = 0;
    segment.nonfinite = false;
    scratch.cursors.clear();
    for (const Source& source : segment.sources) scratch.cursors.push_back(static_cast<const std::byte*>(source.data));
    const std::int64_t longest = unit_of(segment.shape);
    for (std::int64_t begin = segment.range.begin; begin < segment.range.end; begin += longest) {
      Unit unit{segment, facts_of(instance_, segment), begin - segment.range.begin, scratch, nullptr};
      unit.facts.n = std::min(longest, segment.range.end - begin);
      unit.facts.key.coordinate = static_cast<std::uint64_t>(begin);
      CASYNC_CHECK(segment.state.size() <= unit.state.size(), info_.spec, " has too many states");
      for (std::size_t i = 0; i < segment.state.size(); ++i)
        unit.state[i] = segment.state[i] + (instance_.codec.states[i].per_element ? begin : 0);
      unit.facts.state = unit.state.data();
      unit.arrays = scratch.arrays_for(instance_.kernels().scratch_bytes(unit.facts));
      run_unit(unit);
    }
    for (std::size_t i = 0; i < segment.sources.size(); ++i) {
      const Source& source = segment.sources[i];
      const auto used = static_cast<std::size_t>(scratch.cursors[i] - static_cast<const std::byte*>(source.data));
      if (!source.raw && used != source.bytes) throw_corrupt(info_, segment, source.bytes, used);
    }
  }

  void run_unit(Unit& unit) const {
    Segment& segment = unit.segment;
    if (gathers_in_place(segment)) return gather(unit);
    if (segment.payload.empty() && accumulate_there(unit)) return;
    const std::optional<std::size_t> pending = pending_for(segment);
    const float* values = accumulate(unit, pending.has_value());
    float factor = segment.mid;
    if (!segment.payload.empty()) {
      const std::span<const std::byte> written =
          pending ? encode_with_others(unit, values, unit.state[*pending]) : encode(unit, values).payload;
      if (segment.raw_out == nullptr) return;
      // Every rank decodes these very bytes.
      float* const there = destination(unit, 1.0F);
      float* const decoded = there != nullptr ? there : unit.scratch.values_for(unit.facts.n);
      decode(unit, written, decoded, Into::set, true, nullptr, &segment.nonfinite);
      if (there != nullptr) return;
      values = decoded;
      factor = 1.0F;
    }
    const auto store = kernels().store_raw[static_cast<std::size_t>(segment.dtype)];
    segment.nonfinite |= store(values, factor, segment.post,
                               static_cast<std::byte*>(segment.raw_out) + unit.raw_bytes(), unit.facts.n, false);
  }

  /// Whether the sum of sparse payloads can be made where it goes: but for what was sent it is zeros.
  bool gathers_in_place(const Segment& segment) const {
    return instance_.kernels().sparse && segment.payload.empty() && segment.dtype == DType::float32 &&
           std::ranges::none_of(segment.sources, &Source::raw);
  }

  void gather(Unit& unit) const {
    Segment& segment = unit.segment;
    float* const out = reinterpret_cast<float*>(static_cast<std::byte*>(segment.raw_out) + unit.raw_bytes());
    for (std::size_t i = 0; i < segment.sources.size(); ++i) add_payload(unit, i, i == 0, out);
    if (segment.mid != 1.0F || segment.post != 1.0F)
      segment.nonfinite |= kernels().store_raw[0](out, segment.mid, segment.post, out, unit.facts.n, false);
  }

  /// Where a dense codec's results go as they are, so that what decodes them looks at them too; null: nowhere.
  float* destination(const Unit& unit, float factor) const {
    const Segment& segment = unit.segment;
    const bool as_is = segment.dtype == DType::float32 && factor == 1.0F && segment.post == 1.0F;
    return as_is && !instance_.kernels().sparse ? static_cast<float*>(segment.raw_out) + unit.offset : nullptr;
  }

  /// The sum over the sources, in order, as the result itself. False, and nothing is done, if it cannot be there.
  bool accumulate_there(Unit& unit) const {
    const Segment& segment = unit.segment;
    float* const sum = destination(unit, segment.mid);
    const auto in_place = [&](const Source& source) { return source.raw && source.data == segment.raw_out; };
    const auto found = std::ranges::find_if(segment.sources, in_place) - segment.sources.begin();
    const std::size_t first = found == std::ssize(segment.sources) ? 0 : static_cast<std::size_t>(found);
    if (sum == nullptr || first > 1) return false;  // the sum of two is the same in either order
    add_source(unit, first, true, sum);
    for (std::size_t i = 0; i < segment.sources.size(); ++i)
      if (i != first) add_source(unit, i, false, sum);
    return true;
  }

  /// The state array that takes what others have sent, where a codec with feedback of its own encodes; else nothing.
  std::optional<std::size_t> pending_for(const Segment& segment) const {
    const auto payloads = std::ranges::count(segment.sources, false, &Source::raw);
    if (info_.feedback != Feedback::own || segment.payload.empty() || payloads == 0) return std::nullopt;
    const auto& states = instance_.codec.states;
    const auto at = std::ranges::find(states, true, &GeneratedState::pending);
    if (at == states.end()) return std::nullopt;
    return static_cast<std::size_t>(at - states.begin());
  }

  /// The sum over the sources, in order, or over those that are raw; a float32 source that is alone is read in place.
  const float* accumulate(Unit& unit, bool raw_only) const {
    const Segment& segment = unit.segment;
    const auto counts = [&](const Source& source) { return source.raw || !raw_only; };
    const auto first = std::ranges::find_if(segment.sources, counts) - segment.sources.begin();
    const bool alone = std::ranges::count_if(segment.sources, counts) == 1 && segment.sources[first].raw;
    if (alone && segment.dtype == DType::float32 && segment.pre == 1.0F)
      return static_cast<const float*>(segment.sources[first].data) + unit.offset;
    float* const sum = unit.scratch.values_for(unit.facts.n);
    if (first == std::ssize(segment.sources)) std::fill_n(sum, unit.facts.n, 0.0F);
    for (std::size_t i = 0; i < segment.sources.size(); ++i)
      if (counts(segment.sources[i])) add_source(unit, i, std::cmp_equal(i, first), sum);
    return sum;
  }

  void add_source(Unit& unit, std::size_t i, bool first, float* sum) const {
    Segment& segment = unit.segment;
    const Source& source = segment.sources[i];
    if (!source.raw) return add_payload(unit, i, first, sum);
    const auto* const from = static_cast<const std::byte*>(source.data) + unit.raw_bytes();
    // It is looked at when something is added.
    if (static_cast<const void*>(from) == sum && segment.pre == 1.0F && segment.sources.size() > 1) return;
    const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
    segment.nonfinite |= load(from, segment.pre, first ? nullptr : sum, sum, unit.facts.n);
  }

  /// Source i decoded into `sum`, the first one instead of what is there.
  void add_payload(Unit& unit, std::size_t i, bool first, float* sum) const {
    Segment& segment = unit.segment;
    const auto* const end = static_cast<const std::byte*>(segment.sources[i].data) + segment.sources[i].bytes;
    const std::byte*& cursor = unit.scratch.cursors[i];
    const Into into = first ? Into::set : Into::add;
    cursor += decode(unit, {cursor, end}, sum, into, segment.payload.empty(), nullptr, &segment.nonfinite);
  }

  /// Encodes `values`, while what the payloads have waits with what this rank has not sent yet. A unit of which either
  /// is not finite is sent as such, and the state stays.
  std::span<const std::byte> encode_with_others(Unit& unit, const float* values, float* pending) const {
    static thread_local std::vector<float> others, before;
    const Segment& segment = unit.segment;
    const auto n = static_cast<std::size_t>(unit.facts.n);
    others.resize(n);
    bool first = true;
    for (std::size_t i = 0; i < segment.sources.size(); ++i) {
      if (!segment.sources[i].raw) add_payload(unit, i, std::exchange(first, false), others.data());
    }
    if (!std::ranges::all_of(others, [](float value) { return std::isfinite(value); })) {
      for (std::size_t i = 0; i < n; ++i) others[i] += values[i];
      return encode(unit, others.data()).payload;
    }
    before.assign(pending, pending + n);
    for (std::size_t i = 0; i < n; ++i) pending[i] += others[i];
    const Encoded encoded = encode(unit, values);
    if (encoded.nonfinite) std::ranges::copy(before, pending);
    return encoded.payload;
  }

  struct Encoded {
    std::span<const std::byte> payload;
    bool nonfinite;
  };

  /// Returns what was written, and leaves the residual.
  Encoded encode(Unit& unit, const float* values) const {
    Segment& segment = unit.segment;
    std::byte* const to = segment.payload.data() + segment.payload_bytes;
    const std::int64_t bound = bound_of(segment.shape, unit.facts.n);
    const Decayed residual(info_.feedback_decay, unit.residual(), unit.facts.n, unit.scratch);
    const UnitJob job{.facts = unit.facts,
                      .accumulated = values,
                      .residual = residual.values(),
                      .mid = segment.mid,
                      .payload = to,
                      .payload_end = to + bound,
                      .scratch = unit.arrays};
    const EncodedUnit encoded = instance_.kernels().encode_unit(job, 0);
    if (encoded.bytes < 0) {
      throw InvalidArgument(detail::concat(info_.spec, ": a unit of ", unit.facts.n, " elements needs more than the ",
                                           bound, " bytes of its bound: correct `bound` in the file"));
    }
    segment.payload_bytes += static_cast<std::size_t>(encoded.bytes);
    segment.nonfinite |= encoded.nonfinite;
    const std::span<const std::byte> written(to, static_cast<std::size_t>(encoded.bytes));
    if (residual.values() != nullptr && !encoded.nonfinite) {
      if (!encoded.settled) decode(unit, written, residual.values(), Into::lose, false, values);
      residual.leave();
    }
    return {written, encoded.nonfinite};
  }

  /// Returns the bytes that were the unit's.
  std::int64_t decode(const Unit& unit, std::span<const std::byte> payload, float* out, Into into, bool keep,
                      const float* accumulated = nullptr, bool* nonfinite = nullptr) const {
    const DecodeJob job{.facts = unit.facts,
                        .payload = payload.data(),
                        .payload_end = payload.data() + payload.size(),
                        .scratch = unit.arrays,
                        .out = out,
                        .accumulated = accumulated,
                        .divisor = unit.segment.mid,
                        .keep = keep,
                        .nonfinite = nonfinite};
    const std::int64_t used = instance_.kernels().decode_unit(job, into);
    if (used < 0) {
      throw CorruptPayload(detail::concat(
          info_.spec, ": decode refuses the payload of the unit at element ", unit.segment.range.begin + unit.offset,
          " of a ", unit.segment.shape.rows, " x ", unit.segment.shape.cols, " gradient: of ", payload.size(),
          " bytes some are missing, or an index or a count is out of range. For a file of your own try `casync compll "
          "test`"));
    }
    return used;
  }
};

}  // namespace

std::shared_ptr<const Codec> make_units(Instance instance) { return std::make_shared<Units>(std::move(instance)); }

}  // namespace casync::codec
