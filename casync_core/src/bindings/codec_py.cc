#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bindings/bindings.hpp"
#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "casync/planner.hpp"
#include "codec/plugin.hpp"

namespace py = pybind11;

namespace casync {
namespace {

constexpr std::array kIsaNames{"baseline", "avx2", "avx512"};
constexpr std::array kAggregationNames{"reduce", "reencode", "gather"};
constexpr std::array kFeedbackNames{"none", "wrapper", "own"};

template <typename Names, typename Enum>
const char* name_in(const Names& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

std::vector<std::string> isa_names() {
  return {kIsaNames.begin(), kIsaNames.begin() + static_cast<std::ptrdiff_t>(best_isa()) + 1};
}

void force_isa_named(const std::string& name) {
  const auto found = std::find(kIsaNames.begin(), kIsaNames.end(), name);
  if (found == kIsaNames.end()) throw InvalidArgument(detail::concat("no instruction set '", name, "'"));
  force_isa(static_cast<Isa>(found - kIsaNames.begin()));
}

Shape shape_of(std::pair<std::int64_t, std::int64_t> shape) { return {shape.first, shape.second}; }
Range range_of(std::pair<std::int64_t, std::int64_t> range) { return {range.first, range.second}; }
DType dtype_of(std::uint8_t number) {
  if (number >= kDTypeSize.size()) throw InvalidArgument(detail::concat("no element type ", int{number}));
  return static_cast<DType>(number);
}

/// A `casync.compll.conformance.contract.Segment` as the contract's. Holds its buffers, so it is made and destroyed
/// with the GIL; in between the codec may run without it.
class Borrowed {
 public:
  explicit Borrowed(const py::handle& from) : from_(from) {
    segment.shape = shape_of(get<std::pair<std::int64_t, std::int64_t>>("shape"));
    segment.range = range_of(get<std::pair<std::int64_t, std::int64_t>>("range"));
    segment.dtype = dtype_of(get<std::uint8_t>("dtype"));
    segment.name_hash = get<std::uint64_t>("name_hash");
    segment.sequence = get<std::uint32_t>("sequence");
    segment.rank = get<std::uint16_t>("rank");
    segment.role = static_cast<Role>(get<std::uint8_t>("role"));
    segment.round = get<std::uint8_t>("round");
    segment.pre = get<float>("pre");
    segment.mid = get<float>("mid");
    segment.post = get<float>("post");
    segment.world = get<std::uint32_t>("world");
    segment.lr = get<float>("lr");
    segment.momentum = get<float>("momentum");
    segment.nesterov = get<bool>("nesterov");
    for (const py::handle source : from.attr("sources")) {
      const auto data = bytes_of(source.attr("data"), false);
      sources_.push_back({data.data(), data.size(), source.attr("raw").cast<bool>()});
    }
    for (const py::handle array : from.attr("state"))
      state_.push_back(reinterpret_cast<float*>(bytes_of(array, true).data()));
    segment.previous = optional("previous", false);
    segment.residual = reinterpret_cast<float*>(elements("residual", sizeof(float)));
    segment.payload = optional("payload", true);
    segment.raw_out = elements("raw_out", size_of(segment.dtype));
    segment.sources = sources_;
    segment.state = state_;
  }

  void report(const Segment& done) const {
    from_.attr("payload_bytes") = done.payload_bytes;
    from_.attr("nonfinite") = done.nonfinite;
  }

  Segment segment;

 private:
  template <typename Value>
  Value get(const char* name) const {
    return from_.attr(name).cast<Value>();
  }

  std::span<std::byte> bytes_of(const py::handle& object, bool written) {
    const auto buffer = py::cast<py::buffer>(object);
    const py::buffer_info& info = buffers_.emplace_back(buffer.request(written));
    if (PyBuffer_IsContiguous(info.view(), 'C') == 0) throw InvalidArgument("a segment's arrays must be contiguous");
    return {static_cast<std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
  }
  std::span<std::byte> optional(const char* name, bool written) {
    const py::object object = from_.attr(name);
    return object.is_none() ? std::span<std::byte>() : bytes_of(object, written);
  }
  /// Memory that a codec writes without knowing how much there is.
  std::byte* elements(const char* name, std::size_t size) {
    const std::span<std::byte> found = optional(name, true);
    const std::size_t needed = static_cast<std::size_t>(segment.range.size()) * size;
    if (found.data() != nullptr && found.size() != needed)
      throw InvalidArgument(
          detail::concat("a segment's ", name, " has ", found.size(), " bytes, ", needed, " expected"));
    return found.data();
  }

  py::handle from_;
  std::vector<py::buffer_info> buffers_;
  std::vector<Source> sources_;
  std::vector<float*> state_;
};

void run(const Codec& codec, const std::vector<py::object>& segments) {
  std::vector<Borrowed> borrowed;
  borrowed.reserve(segments.size());  // a Borrowed points into itself
  std::vector<Segment> batch;
  for (const py::object& segment : segments) batch.push_back(borrowed.emplace_back(segment).segment);
  {
    const py::gil_scoped_release release;
    codec.run(batch);
  }
  for (std::size_t i = 0; i < batch.size(); ++i) borrowed[i].report(batch[i]);
}

}  // namespace

void bind_codec(py::module_& module) {
  using namespace py::literals;
  using Pair = std::pair<std::int64_t, std::int64_t>;
  module.def("codec_names", &codec_names, "Names of the codecs that compression= accepts.");
  module.def(
      "check_codec", [](const std::string& spec) { return make_codec(spec)->info().spec; }, "spec"_a,
      "Canonical form of a codec spec; InvalidArgumentError if there is no such codec.");
  module.def("check_compression", &check_compression, "text"_a,
             "InvalidArgumentError unless the text is a codec spec, auto(...) or covap(...), also in always(...).");
  module.def("interval_of", &interval_of, "text"_a,
             "In one of how many steps a gradient with such a text is synchronised: 1 without covap(...).");
  module.def("takes_momentum", &takes_momentum, "text"_a,
             "Whether the codec of such a text takes over the optimizer's momentum.");
  module.def("rises", &rises, "text"_a, "Whether it is a covap in which what waits counts for less at first.");
  module.def("keeps_state", &keeps_state, "text"_a,
             "Whether a codec of such a text keeps something of a gradient between steps: a residual, or more.");
  module.def("device_codecs", &device_codecs, "text"_a,
             "The codecs that a compression may become and that a GPU has code for, as canonical specs.");
  module.def("load_codec", &codec::load_plugin, "path"_a,
             "Load a codec that casync.compll.plugin compiled; returns its name.");
  module.def(
      "isa", [] { return name_in(kIsaNames, current_isa()); }, "Instruction set the codecs use on this processor.");
  module.def("isas", &isa_names, "Instruction sets that this processor offers, the best one last.");
  module.def("force_isa", &force_isa_named, "name"_a,
             "Make codecs use this one, for tests and benchmarks: not while any runs.");

  py::class_<CodecInfo>(module, "CodecInfo")
      .def_readonly("spec", &CodecInfo::spec)
      .def_property_readonly("rounds",
                             [](const CodecInfo& info) {
                               std::vector<std::string> names;
                               for (const Round& round : info.rounds)
                                 names.emplace_back(name_in(kAggregationNames, round.aggregation));
                               return names;
                             })
      .def_property_readonly("feedback", [](const CodecInfo& info) { return name_in(kFeedbackNames, info.feedback); })
      .def_readonly("feedback_decay", &CodecInfo::feedback_decay)
      .def_readonly("identity", &CodecInfo::identity)
      .def_readonly("whole", &CodecInfo::whole)
      .def_readonly("fixed_size", &CodecInfo::fixed_size)
      .def_readonly("prescaled", &CodecInfo::prescaled)
      .def_property_readonly("merges_payloads", [](const CodecInfo& info) { return merges_payloads(info); })
      .def_property_readonly("merged_element",
                             [](const CodecInfo& info) { return name_of(info.rounds.back().element); })
      .def_readonly("momentum", &CodecInfo::momentum);
  py::class_<StateArray>(module, "StateDeclaration")
      .def_readonly("name", &StateArray::name)
      .def_readonly("elements", &StateArray::elements)
      .def_readonly("per_element", &StateArray::per_element)
      .def_readonly("shared", &StateArray::shared)
      .def_readonly("pending", &StateArray::pending);

  // The contract is const throughout, so the holder's type is the only place that is not.
  py::class_<Codec, std::shared_ptr<Codec>>(module, "Codec")
      .def(py::init([](const std::string& spec) { return std::const_pointer_cast<Codec>(make_codec(spec)); }), "spec"_a)
      .def_property_readonly("info", &Codec::info)
      .def(
          "cut",
          [](const Codec& codec, Pair shape, std::int64_t element) { return codec.cut(shape_of(shape), element); },
          "shape"_a, "element"_a)
      .def(
          "bound",
          [](const Codec& codec, Pair shape, std::uint8_t dtype, Pair range, int round) {
            return codec.bound(shape_of(shape), dtype_of(dtype), range_of(range), round);
          },
          "shape"_a, "dtype"_a, "range"_a, "round"_a)
      .def("run", &run, "segments"_a)
      .def(
          "state", [](const Codec& codec, Pair shape) { return codec.state(shape_of(shape)); }, "shape"_a)
      .def(
          "start",
          [](const Codec& codec, Pair shape, std::uint64_t name_hash, std::size_t index, const py::buffer& values) {
            const py::buffer_info info = values.request(true);
            codec.start(shape_of(shape), name_hash, index,
                        {static_cast<float*>(info.ptr), static_cast<std::size_t>(info.size)});
          },
          "shape"_a, "name_hash"_a, "index"_a, "values"_a)
      .def("agreed", &Codec::agreed)
      .def(
          "propose",
          [](const Codec& codec, const py::object& segment, const py::buffer& values) {
            const py::buffer_info info = values.request(true);
            codec.propose(Borrowed(segment).segment,
                          {static_cast<float*>(info.ptr), static_cast<std::size_t>(info.size)});
          },
          "segment"_a, "values"_a)
      .def(
          "agree",
          [](const Codec& codec, const py::object& segment, const py::buffer& values) {
            const py::buffer_info info = values.request();
            codec.agree(Borrowed(segment).segment,
                        {static_cast<const float*>(info.ptr), static_cast<std::size_t>(info.size)});
          },
          "segment"_a, "values"_a)
      .def(
          "applies",
          [](const Codec& codec, Pair shape, std::uint32_t sequence) {
            return codec.applies(shape_of(shape), sequence);
          },
          "shape"_a, "sequence"_a);
}

}  // namespace casync
