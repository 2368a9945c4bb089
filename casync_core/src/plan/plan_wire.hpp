#pragma once

#include <cstddef>
#include <vector>

#include "casync/plan.hpp"
#include "common/wire.hpp"

/// Plans and signatures as bytes, for control messages between the ranks of one job. The form for people and files is
/// JSON (casync/plan/plans.py). A reader stands after the value it read, so values may follow each other in one
/// message.
namespace casync {

void put(std::vector<std::byte>& out, const GradientPlan& plan);
void put(std::vector<std::byte>& out, const Signature& signature);

/// Throw CorruptPayload, naming the field, for bytes that `put` did not write: too short, or a number that means
/// nothing.
GradientPlan get_plan(ByteReader& reader);
Signature get_signature(ByteReader& reader);

}  // namespace casync
