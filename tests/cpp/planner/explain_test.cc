#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

TEST_F(PlanTest, ExplainIsOneLineWithNameShapeChoiceAndTimes) {
  Signature signature = gradient_of(64 * 3 * 49 * 100, "auto(onebit)");
  signature.dims = "(6400, 3, 7, 7)";
  const std::string line = explain("conv1.weight", signature, plan(signature));
  EXPECT_EQ(line.rfind("conv1.weight (6400, 3, 7, 7) float32: onebit, K=", 0), 0U) << line;
  for (const char* part : {" ps, ", " ms compressed, ", " ms not; ", "first owner 0", "auto: onebit"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST_F(PlanTest, ExplainOfAnUncompressedGradientHasOneTime) {
  const Signature signature = gradient_of(100);
  const std::string line = explain("bias", signature, plan(signature));
  EXPECT_EQ(line.find("compressed,"), std::string::npos) << line;
}

}  // namespace
}  // namespace casync
