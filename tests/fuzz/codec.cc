// Payloads that no codec wrote, to every codec there is: decode, merge, and merge with encode, over any shape, range
// and dtype, at every instruction set. CorruptPayload is the one answer besides a result. An input is any number of
// calls.
//
// What the caller says (the segment) is always as the contract wants it; what came off the wire (payloads, the
// aggregated payload of the round before, values that ranks agree on) or out of a checkpoint (state) is not.
#include "casync/codec.hpp"

#include <array>
#include <cmath>
#include <memory>
#include <string>

#include "casync/error.hpp"
#include "codec/cpu/kernels/kernels.hpp"
#include "common/crc32c.hpp"
#include "executor/memory/gradient_state.hpp"
#include "input.hpp"

namespace casync::fuzz {
namespace {

constexpr std::int64_t kMostElements = 17'000;  // more than a unit, but for those of a million elements
constexpr std::array kFactors{1.0F, 0.5F, 1.0F / 3.0F, 0.125F, -2.5F};

/// Every codec by its defaults, and those that other parameters make another codec.
std::vector<std::shared_ptr<const Codec>> all_codecs() {
  std::vector<std::string> specs = codec_names();
  specs.insert(specs.end(),
               {"terngrad(bits=4)", "terngrad(bits=8)", "dgc(ratio=0.2)", "powersgd(rank=1)", "test_topk(ratio=0.01)",
                "test_topk(ratio=1)", "test_tworound", "test_state(gather=0)", "test_state(gather=1)", "test_lowrank"});
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const std::string& spec : specs) codecs.push_back(make_codec(spec));
  return codecs;
}

/// The codec whose name and `number` together hash highest. A codec that comes or goes leaves most numbers with the
/// codec they had, so the inputs that are kept go on meaning what they meant.
const Codec& choose_codec(std::uint8_t number) {
  static const auto codecs = all_codecs();
  const auto rank = [&](const std::shared_ptr<const Codec>& codec) {
    const std::string key = codec->info().spec + static_cast<char>(number);
    return crc32c(std::as_bytes(std::span(key)));
  };
  const auto best =
      std::max_element(codecs.begin(), codecs.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return **best;
}

/// `length` bytes of the heap, exactly, so that a sanitizer sees a read beyond them: `content`, over and over.
std::unique_ptr<std::byte[]> filled(std::size_t length, std::span<const std::byte> content, std::size_t from = 0) {
  auto memory = std::make_unique<std::byte[]>(length);
  for (std::size_t i = 0; i < length && !content.empty();) {
    const auto next = content.subspan((from + i) % content.size());
    const std::size_t count = std::min(next.size(), length - i);
    std::memcpy(memory.get() + i, next.data(), count);
    i += count;
  }
  return memory;
}

/// Of a payload off the wire: mostly what is right where that is one number, sometimes a little more or less.
std::size_t choose_length(Input& input, std::size_t bound, bool fixed) {
  const std::size_t chosen = input.get<std::uint8_t>();
  if (fixed && chosen < 224) return bound;
  if (chosen >= 224) return bound + 16 >= chosen - 224 ? bound + 16 - (chosen - 224) : 0;
  return bound * chosen / 224;
}

/// The bits of element `i`, those of every NaN alike: which NaN a sum of two gives is the processor's matter.
std::uint64_t bits_of(std::span<const std::byte> elements, std::size_t i, DType dtype) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, elements.data() + i * size_of(dtype), size_of(dtype));
  constexpr std::array<std::uint64_t, 4> kInf{0x7f800000, 0x7c00, 0x7f80, 0x7ff0000000000000};  // by DType
  if (!is_floating(dtype)) return bits;
  const std::uint64_t inf = kInf[static_cast<std::size_t>(dtype)];
  const std::uint64_t sign = std::uint64_t{1} << (8 * size_of(dtype) - 1);
  return (bits & ~sign) > inf ? inf + 1 : bits;
}

bool same_values(std::span<const std::byte> a, std::span<const std::byte> b, DType dtype) {
  if (a.size() != b.size()) return false;
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return true;
  for (std::size_t i = 0; i < a.size() / size_of(dtype); ++i) {
    if (bits_of(a, i, dtype) != bits_of(b, i, dtype)) return false;
  }
  return true;
}

std::vector<float> floats(std::int64_t count, std::span<const std::byte> content) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const std::size_t bytes = values.size() * sizeof(float);
  if (bytes > 0) std::memcpy(values.data(), filled(bytes, content).get(), bytes);
  return values;
}

/// Whence state comes: as it starts; agreed on, by this rank alone or by what others say; out of a checkpoint.
enum class Origin : std::uint8_t { start, own, others, checkpoint };

struct Change {
  std::size_t at = 0;
  std::byte to{};
};

/// One call as an executor would make it, and all the memory of it: of payloads that merge without being decoded, one
/// raw source is encoded or payloads are merged; otherwise sources of both kinds come together.
class Call {
 public:
  Call(const Codec& codec, Input& input) : codec_(codec), info_(codec.info()) {
    segment_.round = static_cast<std::uint8_t>(input.below(info_.rounds.size()));
    final_ = segment_.round + 1U == info_.rounds.size();
    segment_.dtype = static_cast<DType>(input.below(info_.identity ? kDTypeSize.size() : 4));
    constexpr std::array kOps{ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};
    segment_.op = kOps[input.below(info_.identity ? kOps.size() : 1)];
    choose_range(input);
    segment_.name_hash = segment_.sequence = input.get<std::uint8_t>() * 8U;
    applies_ = codec_.applies(segment_.shape, segment_.sequence);
    segment_.role = static_cast<Role>(input.below(2));
    const bool reduces = merges_payloads(info_);
    const std::array<float, 3> factors{kFactors[input.below(kFactors.size())], kFactors[input.below(kFactors.size())],
                                       kFactors[input.below(kFactors.size())]};
    if (!merges_payloads(info_)) {
      segment_.pre = factors[0];
      segment_.mid = factors[1];
    }
    segment_.post = factors[2];
    const std::size_t wanted = 1 + input.below(4);
    const std::size_t raw = input.get<std::uint8_t>();  // a bit for each source
    const std::size_t count = reduces && raw % 2 == 1 ? 1 : wanted;
    const auto is_raw = [&](std::size_t i) { return (raw >> (reduces ? 0 : i) & 1U) != 0; };
    const bool delivers = final_ && !(reduces && is_raw(0));
    encodes_ = input.flag() || !delivers;
    segment_.world = static_cast<std::uint32_t>(wanted);
    segment_.lr = 0.1F;
    segment_.momentum = 0.9F;
    const auto origin = static_cast<Origin>(input.below(4));
    const bool keeps_residual = input.flag();
    const bool in_place = input.flag();
    std::array<std::size_t, 5> length{};
    for (std::size_t& one : length) one = choose_length(input, bound(segment_.round), info_.fixed_size);
    const std::size_t previous = segment_.round > 0 ? choose_length(input, bound(segment_.round - 1), true) : 0;
    const std::size_t written = applies_ ? input.get<std::uint8_t>() : 0;  // a bit for each source
    std::vector<Change> changes(written == 0 ? 0 : input.below(5));
    for (Change& change : changes)
      change = {input.get<std::uint16_t>(), static_cast<std::byte>(input.get<std::uint8_t>())};
    const auto content = input.take(input.get<std::uint8_t>());
    make_state(origin, content);

    previous_ = filled(previous, content);
    if (segment_.round > 0) segment_.previous = {previous_.get(), previous};
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t bytes = is_raw(i) ? raw_bytes() : length[i];
      const std::size_t from = i * content.size() / count;
      const bool as_written = !is_raw(i) && (written >> i & 1U) != 0;
      memory_.push_back(as_written ? write(content, from, changes, bytes) : filled(bytes, content, from));
      sources_.push_back({memory_.back().get(), bytes, is_raw(i)});
    }
    segment_.sources = sources_;
    if (encodes_) {
      payload_ = filled(bound(segment_.round), {});
      segment_.payload = {payload_.get(), bound(segment_.round)};
    }
    if (encodes_ && keeps_residual && info_.feedback == Feedback::wrapper) {
      residual_ = filled(static_cast<std::size_t>(segment_.range.size()) * sizeof(float), content);
      segment_.residual = reinterpret_cast<float*>(residual_.get());
    }
    if (delivers) {
      result_ = filled(raw_bytes(), {});
      segment_.raw_out = in_place && sources_[0].raw ? memory_[0].get() : result_.get();
    }
  }

  /// Whether the codec took the bytes.
  bool run() {
    try {
      codec_.run({&segment_, 1});
      return true;
    } catch (const CorruptPayload&) {
      return false;
    }
  }

  std::span<const std::byte> result() const {
    return {static_cast<const std::byte*>(segment_.raw_out), segment_.raw_out == nullptr ? 0 : raw_bytes()};
  }
  bool applies() const { return applies_; }
  bool encodes() const { return encodes_; }
  const Segment& segment() const { return segment_; }

  /// What is encoded has the length it says, and the owner's result is what others decode.
  void check() const {
    if (!encodes_) return;
    require(segment_.payload_bytes <= segment_.payload.size(), "a payload is at most as long as its bound");
    require(!info_.fixed_size || segment_.payload_bytes == segment_.payload.size(), "and as long if it is fixed");
    if (segment_.raw_out != nullptr)
      require(same_values(decode(), result(), segment_.dtype), "the owner's result is what others decode");
  }

 private:
  /// The call that decodes what this one has encoded.
  Bytes decode() const {
    Bytes decoded(raw_bytes());
    const Source payload{segment_.payload.data(), segment_.payload_bytes, false};
    Segment segment = segment_;
    segment.sources = {&payload, 1};
    segment.mid = 1.0F;
    segment.residual = nullptr;
    segment.payload = {};
    segment.raw_out = decoded.data();
    codec_.run({&segment, 1});
    return decoded;
  }

  /// The payload that the codec writes of a gradient made of `content`, with `changes`; `bytes` becomes its length.
  std::unique_ptr<std::byte[]> write(std::span<const std::byte> content, std::size_t from,
                                     std::span<const Change> changes, std::size_t& bytes) const {
    const auto gradient = filled(raw_bytes(), content, from);
    const Source source{gradient.get(), raw_bytes(), true};
    const auto payload = filled(bound(segment_.round), {});
    ScratchState state(codec_, segment_);
    Segment segment = segment_;
    segment.sources = {&source, 1};
    segment.state = state.arrays();
    segment.payload = {payload.get(), bound(segment_.round)};
    try {
      codec_.run({&segment, 1});
    } catch (const CorruptPayload&) {  // of the round before
    }
    bytes = segment.payload_bytes;
    auto written = filled(bytes, {payload.get(), bytes});
    for (const Change& change : changes) {
      if (change.at < bytes) written[change.at] = change.to;
    }
    return written;
  }

  void choose_range(Input& input) {
    const std::int64_t most = kMostElements >> input.below(10);  // small ones are fast, and see most of what there is
    const auto rows = std::min<std::int64_t>(input.get<std::uint16_t>(), most);
    const auto cols = std::int64_t{input.get<std::uint16_t>()};
    segment_.shape = {rows, rows == 0 ? cols : std::min(cols, most / rows)};
    const std::int64_t numel = segment_.shape.numel();
    const auto cut = [&](std::int64_t element) {
      const std::int64_t boundary = codec_.cut(segment_.shape, element);
      require(boundary >= 0 && boundary <= element, "cut() is at most the element it was asked for");
      return boundary;
    };
    const std::int64_t one = cut(numel * input.get<std::uint8_t>() / 255);
    const std::int64_t other = cut(numel - numel * input.get<std::uint8_t>() / 255);
    segment_.range = {std::min(one, other), std::max(one, other)};
  }

  void make_state(Origin origin, std::span<const std::byte> content) {
    if (origin == Origin::checkpoint) {
      CodecState saved{info_.spec, true, 0, codec_.state(segment_.shape), {}};
      for (const StateArray& array : saved.arrays) {
        const std::vector<float> values = floats(array.elements, content);
        saved.values.emplace_back(values.begin(), values.end());
      }
      kept_.set_state(std::move(saved));
    }
    kept_.start(codec_, segment_.shape, "a gradient", segment_.name_hash);
    segment_.state = kept_.arrays();
    std::vector<float> values = floats(codec_.agreed(), content);
    if (origin == Origin::own) propose(values, content);
    const bool finite = std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
    if (origin != Origin::start && !values.empty() && finite) codec_.agree(segment_, values);
  }

  void propose(std::span<float> values, std::span<const std::byte> content) const {
    if (values.empty()) return;
    Segment whole = segment_;
    whole.range = {0, whole.shape.numel()};
    const std::size_t bytes = static_cast<std::size_t>(whole.range.size()) * size_of(whole.dtype);
    const auto memory = filled(bytes, content);
    const Source gradient{memory.get(), bytes, true};
    whole.sources = {&gradient, 1};
    codec_.propose(whole, values);
  }

  std::size_t bound(int round) const { return codec_.bound(segment_.shape, segment_.dtype, segment_.range, round); }
  std::size_t raw_bytes() const { return static_cast<std::size_t>(segment_.range.size()) * size_of(segment_.dtype); }

  const Codec& codec_;
  const CodecInfo& info_;
  bool applies_ = false;
  bool final_ = false;
  bool encodes_ = false;
  Segment segment_;
  std::vector<Source> sources_;
  GradientState kept_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::unique_ptr<std::byte[]> previous_;
  std::unique_ptr<std::byte[]> payload_;
  std::unique_ptr<std::byte[]> residual_;
  std::unique_ptr<std::byte[]> result_;
};

void test_one(Input& input) {
  const Codec& codec = choose_codec(input.get<std::uint8_t>());
  codec::force_reading(static_cast<codec::Reading>(input.below(3)));
  force_isa(Isa::baseline);
  const Input here = input;
  Call baseline(codec, input);
  if (!baseline.applies()) return;
  const bool taken = baseline.run();
  if (taken) baseline.check();
  for (int isa = 1; isa <= static_cast<int>(best_isa()); ++isa) {
    force_isa(static_cast<Isa>(isa));
    Input again = here;
    Call call(codec, again);
    require(call.run() == taken, "a payload is refused at every instruction set or at none");
    if (taken) call.check();
    if (taken && !call.encodes())
      require(same_values(call.result(), baseline.result(), call.segment().dtype), "decode is bit-equal");
  }
}

}  // namespace
}  // namespace casync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (casync::fuzz::Input input{data, size}; input.left() > 0;) casync::fuzz::test_one(input);
  return 0;
}
