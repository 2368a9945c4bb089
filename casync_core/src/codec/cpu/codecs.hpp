#pragma once

#include <memory>

#include "casync/codec.hpp"
#include "codec/spec.hpp"

/// The codecs of this folder, one file each. A factory takes its parameters from the spec and refuses the others.
namespace casync::codec {

using CodecPointer = std::shared_ptr<const Codec>;

CodecPointer make_none(Spec& spec);
CodecPointer make_fp16(Spec& spec);
CodecPointer make_bf16(Spec& spec);
/// For results of which most elements are zero (workflow.hpp).
CodecPointer make_nonzeros(Spec& spec);
/// For elements of payloads that merge (workflow.hpp).
CodecPointer make_parts(Spec& spec);
/// For steps in which a gradient is not synchronised (plan.hpp).
CodecPointer make_hold(Spec& spec);

// For tests of the runtime: the shapes of codec that the shipped ones do not have.
CodecPointer make_test_topk(Spec& spec);
CodecPointer make_test_two_round(Spec& spec);
CodecPointer make_test_state(Spec& spec);
CodecPointer make_test_low_rank(Spec& spec);

}  // namespace casync::codec
