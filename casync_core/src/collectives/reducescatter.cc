// Reducescatter: the first half of a parameter server, in which every member owns the rows that it is to have.
//
//   step 1  each worker sends its contribution to a member's rows to that member (on credit: it lands in its memory)
//   step 2  the owner merges all contributions in member order, its own unencoded, and takes the mean: the result
//
// hops 1; bytes per direction (N-1)/N of the encoded gradient where the rows are a multiple of N; messages of a member
// (N-1)/N of the partitions.
//
// A partition never reaches into the rows of two owners, so codecs see the rows of each owner as a gradient of its own:
// otherwise a unit of statistics that two owners share would go to both. The residual is one over all rows; that of a
// member's own rows stays zero, because they are never encoded.
#include "casync/error.hpp"
#include "collectives/collectives.hpp"

namespace casync {

Range scattered_to(std::uint32_t member, std::uint32_t members, const Shape& shape) {
  const std::int64_t least = shape.rows / members;
  const std::int64_t longer = shape.rows % members;
  const auto begin_of = [&](std::int64_t m) { return (m * least + std::min(m, longer)) * shape.cols; };
  return {begin_of(member), begin_of(member + 1)};
}

void check_scatters(const Codec& codec, const Shape& shape) {
  const CodecInfo& info = codec.info();
  const auto refuse = [&](const char* why) {
    throw InvalidArgument(detail::concat("codec ", info.spec, " ", why,
                                         ", which a reducescatter does not carry; use one that reduces in one pass, as "
                                         "fp16, terngrad or onebit, or compression=\"none\""));
  };
  if (info.rounds.size() > 1) refuse("has several rounds");
  if (gathers(info)) refuse("gathers payloads");
  if (merges_payloads(info)) refuse("averages the payloads of all ranks at once");
  if (info.whole) refuse("encodes a whole gradient");
  if (!codec.state(shape).empty() || codec.agreed() > 0) refuse("keeps state of a whole gradient");
}

void reducescatter(WorkflowBuilder& builder) {
  const WorkflowRequest& request = builder.request();
  const std::uint32_t n = builder.members();
  const std::uint32_t self = request.member;
  std::vector<Range> partitions;
  std::vector<Layout> layout;
  std::vector<std::uint32_t> owners;
  for (std::uint32_t m = 0; m < n; ++m) {
    const auto [begin, end] = scattered_to(m, n, request.shape);
    const Shape rows{end > begin ? (end - begin) / request.shape.cols : 0, request.shape.cols};
    for (const Range& cut : cut_evenly(*request.codec, rows, (request.partitions + n - 1) / n)) {
      partitions.push_back({begin + cut.begin, begin + cut.end});
      layout.push_back({partitions.back(), m == self ? cut : Range{}, rows, begin});
      owners.push_back(m);
    }
  }
  builder.set_partitions(std::move(partitions), std::move(layout));
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    const std::uint32_t owner = owners[p];
    if (self != owner) {
      Buffer mine = WorkflowBuilder::input();
      if (!builder.identity()) {
        mine = builder.payload_slot(p);
        const Buffer gradient[] = {WorkflowBuilder::input()};
        builder.compute(Primitive::encode, p, gradient, {.feedback = true, .encode_to = mine});
      }
      builder.send(p, owner, p, mine, true);
      continue;
    }
    std::vector<Buffer> contributions;
    for (std::uint32_t m = 0; m < n; ++m) {
      contributions.push_back(m == self ? WorkflowBuilder::input() : builder.payload_slot(p));
      if (m != self) builder.recv(p, m, p, contributions.back(), true);
    }
    builder.compute(Primitive::merge, p, contributions,
                    {.role = Role::owner, .final = true, .deliver = true, .write_to = WorkflowBuilder::output()});
  }
}

}  // namespace casync
