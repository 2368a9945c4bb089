#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "casync/planner.hpp"
#include "planner/cost/world.hpp"

namespace casync {

/// A gradient whose codec the planner chooses.
struct OpenGradient {
  std::string name;
  Signature signature;
  std::uint32_t step = 0;  ///< the next one
};

/// A gradient whose plan stays, and which takes its part of each step all the same.
struct SettledGradient {
  std::string name;
  Signature signature;
  GradientPlan plan;
};

struct ModelRequest {
  const World& world;
  const CostTable& costs;
  const PlannerOptions& options;
  const OwnerLoad& lasting;  ///< what the members own of settled gradients
  /// Both in the order in which they were first submitted.
  const std::vector<OpenGradient>& open;
  const std::vector<SettledGradient>& settled;
};

/// A step of a model as it is predicted.
struct PredictedStep {
  double step_s = 0;               ///< from the submit of the first gradient on
  std::vector<double> gradient_s;  ///< of each open gradient, from when it is ready until it is synchronised
};

struct ModelPlan : PredictedStep {
  std::vector<Alternative> ways;  ///< of the open gradients, in their order
  double alone_s = 0;             ///< a step with what is fastest for each gradient alone
  /// With each candidate for all gradients of which it is one; the others have what is fastest alone.
  std::vector<std::pair<std::string, PredictedStep>> uniform;
  double bound_s = 0;        ///< no choice takes less; it may lie far below the best one
  double descent_s = 0;      ///< what the descent has found
  double options_s = 0;      ///< what the options of ByteComp come to
  std::size_t bookings = 0;  ///< what both searches have cost: StepModel::bookings
};

/// What each of two searches may cost: so many steps of gradients on resources (StepModel::bookings), some 0.2 s.
inline constexpr std::size_t kSearchBookings = 3'000'000;

/// Plans all gradients of a model at once: chooses for each the codec, the route and the partitions so that the step
/// takes least (F(S): step_model.hpp). It is no slower by that than what is fastest for each gradient alone, and than
/// each candidate for all. There are two searches: a descent, and the options of ByteComp (bytecomp.cc), among which
/// are lists of phases. What the second finds is taken where it saves kWorthwhile of the step.
///
/// The descent begins with the best of these. Then it changes all gradients, halves of them, quarters, and so on down
/// to single ones, the large ones first, and keeps each change that makes the step shorter; and again, as long as that
/// helps. Among steps of one length the one stays that changes training less. A route or a number of partitions that
/// the rules would not choose has to save kWorthwhile of the step, because F(S) knows them less well.
///
/// A gradient without a measured readiness is ready when the one before it is. Worlds of more members than
/// the options say keep the routes of the rules.
ModelPlan plan_model(const ModelRequest& request);
inline constexpr double kWorthwhile = 0.02;

/// How much a codec changes training, as far as one can say without training: nothing, a rounding, or more.
int loss_of(const std::string& spec);

}  // namespace casync
