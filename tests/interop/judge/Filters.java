import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** What RocketMQ makes of filters: refused, error, true, false or null for each of the cases. */
final class Filters {
    private Filters() { }

    static JSONObject judge(JSONObject request) {
        JSONArray answers = new JSONArray();
        JSONArray cases = request.getJSONArray("cases");
        for (int i = 0; i < cases.size(); i++) {
            JSONArray one = cases.getJSONArray(i);
            answers.add(outcome(one.getString(0), one.getJSONObject(1).getInnerMap()));
        }
        JSONObject answer = new JSONObject();
        answer.put("answers", answers);
        return answer;
    }

    private static String outcome(String expression, Map<String, Object> properties) {
        BooleanExpression parsed;
        try {
            parsed = SelectorParser.parse(expression);
        } catch (MQFilterException problem) {
            return "refused";
        }
        try {
            return String.valueOf(parsed.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            }));
        } catch (Exception problem) {
            return "error";
        }
    }
}
